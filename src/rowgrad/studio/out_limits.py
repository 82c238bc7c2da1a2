"""How much goes into or comes out of a studio at once."""

MOST_IMPORTED = 256 << 20  # bytes of a file
MOST_EXPORTED = 16 << 20  # bytes of arrays that are written out as text, several characters for each
