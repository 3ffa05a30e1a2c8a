"""AOTInductor shared objects for the CPU."""
