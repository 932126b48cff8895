"""What special routes earn: each is measured beside the next best way, in turns, on a case that users have."""
