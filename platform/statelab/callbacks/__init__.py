"""What runs beside Lightning's loop, one concern a file."""
