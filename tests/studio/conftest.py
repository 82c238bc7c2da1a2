"""What the tests of the studio share."""
