"""ATen operations in numpy, by kind; `table` lists them all."""
