"""What a design costs: counted on the meta device, a price list for every block, remembered."""
