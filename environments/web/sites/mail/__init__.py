"""A support team's mailbox with folders, messages, an address book and labels, and tickets with their history."""
