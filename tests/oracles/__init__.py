"""Independent references: nothing in this folder imports the product."""
