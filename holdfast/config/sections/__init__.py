"""The sections of the settings, one subject each, and what they share."""
