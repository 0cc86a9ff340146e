"""The parts that move messages: sender, dispatcher, receiver, worker, maintenance."""
