"""Programs that this broker starts outside of itself: on record, so that whoever comes after us can end them."""
