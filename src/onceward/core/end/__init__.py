"""
End a message: its row, dedup record, lane, receipt and counter change in one transaction.

Imports core/rows, file and message.
"""
