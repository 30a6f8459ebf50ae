"""What thread traces and program-counter samples say of single instructions."""
