"""Is a changed kernel right: on which inputs it is asked, and what makes two answers the same."""
