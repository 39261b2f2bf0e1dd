"""What an administrator does with groups: look, pause, resume, set offsets."""
