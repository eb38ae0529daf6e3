"""keylane's version, in a file that imports nothing: what asks for it needs nothing else of the package."""

__version__ = "0.1.0"
