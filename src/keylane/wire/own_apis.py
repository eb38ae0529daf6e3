"""The keys of keylane's own APIs between offset servers (docs/offset-servers.md): who offers them is one."""

BEGIN_FORWARDING, REQUEST_COUNTS = 27_501, 27_502
VERSION = 0
