"""A shop for household goods: categories, search, filters, a basket, a checkout and past orders."""
