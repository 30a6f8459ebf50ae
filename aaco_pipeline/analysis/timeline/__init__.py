"""What ran when: activities, gaps and their causes, dependencies, the critical path, ranks."""
