"""The controller's side: hosts, images, launches, and what they leave behind."""
