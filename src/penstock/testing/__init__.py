"""What tests of Penstock, and of engines and plug-ins for it, are written with."""
