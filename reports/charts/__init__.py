"""Charts: geometry here, drawing in the templates."""
