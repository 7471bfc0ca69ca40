"""What no policy can be under."""
