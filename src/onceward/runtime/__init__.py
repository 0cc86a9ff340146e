"""What moves messages: sender, dispatcher, receiver, worker, maintenance."""
