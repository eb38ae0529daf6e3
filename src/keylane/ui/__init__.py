"""The page of `keylane ui`: it shows groups while they run, and sends them commands.

The idea: one small server asks the brokers what the command line asks, through the same functions (`keylane.desk`), and
a page without a build step shows it. `watch` looks (`looks`) at a group while somebody looks at the page, `views` makes
of it what the page shows and says what has changed, `history` keeps the last minutes, `strips` draws offset maps;
`guard` says who is answered; `actions` does what is asked for; `server` and `page` are the HTTP around it (docs/ui.md,
docs/adr/0106).
"""
