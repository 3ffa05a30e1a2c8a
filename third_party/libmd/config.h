/* Stands in for the header that libmd's configure script writes; sha2.c needs none of its settings. */
