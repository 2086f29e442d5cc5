"""A support team's mailbox with tickets: folders, messages, an address book, labels, and tickets with their history."""
