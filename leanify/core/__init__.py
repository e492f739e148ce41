"""Values and services that every room uses: shapes, recipes, files, errors, units, the machine, the terminal."""
