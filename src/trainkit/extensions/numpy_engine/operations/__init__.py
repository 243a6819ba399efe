"""ATen operations in numpy, by kind; `aten_table` lists them all."""
