"""Steps: results of calls inside a handler that are kept until their record is complete, so that none is paid twice.

`formats` is what stands in the log, `table` what its records add up to, `log` who writes it and reads it.
"""
