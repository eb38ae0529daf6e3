"""Mutants of the page: whom it answers, what it tells, and that nothing is done that was not tried."""

from __future__ import annotations

from mutants import Mutant

GUARD = "unit/ui/test_ui_guard.py"
VIEWS = "unit/ui/test_ui_views.py"
HISTORY = "unit/ui/test_ui_history.py"
SERVER = "integration/test_ui.py"

MUTANTS = [
    Mutant(
        "a name that somebody made lead here is answered",
        "ui/guard.py",
        'if name not in self.hosts and name != "localhost" and not _is_address(name):',
        "if False:",
        f"{GUARD}::test_another_name_that_leads_here_is_refused",
    ),
    Mutant(
        "another site's request is answered when it says where it is from",
        "ui/guard.py",
        "if origin is not None and urlsplit(origin).netloc != host:",
        "if False:",
        f"{GUARD}::test_another_sites_request_is_refused_even_with_the_token",
    ),
    Mutant(
        "another site's request is answered when the browser says so",
        "ui/guard.py",
        'if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):',
        "if False:",
        f"{GUARD}::test_another_sites_request_is_refused_even_with_the_token",
    ),
    Mutant(
        "a group whose members have not joined yet is called not existing",
        "ui/looks.py",
        "is_heard=bool(heard)",
        "is_heard=False",
        f"{SERVER}::test_a_group_that_has_just_started_is_not_said_not_to_exist",
    ),
    Mutant(
        "the page shows a record's payload to everybody",
        "ui/actions.py",
        "[name], pipeline, payloads=payloads)",
        "[name], pipeline, payloads=True)",
        f"{SERVER}::test_a_record_is_shown_and_its_payload_only_with_the_token",
    ),
    Mutant(
        "the page's dry run of a purge deletes",
        "ui/actions.py",
        'return purge(queue, (), below, execute=_flag(body, "execute"))',
        "return purge(queue, (), below, execute=True)",
        f"{SERVER}::test_letters_are_purged_and_those_that_wait_stay",
    ),
    Mutant(
        "anybody may act",
        "ui/guard.py",
        'if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):',
        "if False:",
        f"{GUARD}::test_who_acts_has_the_token",
    ),
    Mutant(
        "without a token the empty one will do",
        "ui/guard.py",
        "if self.token is None:",
        'if self.token is None and headers.get(TOKEN_HEADER, "x"):',
        f"{GUARD}::test_without_a_token_nobody_acts",
    ),
    Mutant(
        "a form of another site may act",
        "ui/guard.py",
        'if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":',
        "if False:",
        f"{GUARD}::test_what_a_form_can_send_is_refused",
    ),
    Mutant(
        "a script in a report becomes a link",
        "ui/views.py",
        'return text if text is not None and text.startswith(("http://", "https://")) else None',
        "return text",
        f"{VIEWS}::test_only_the_address_of_a_page_becomes_a_link",
    ),
    Mutant(
        "a page keeps rows that are gone",
        "ui/views.py",
        "            rows |= dict.fromkeys(then.keys() - now.keys())\n",
        "",
        f"{VIEWS}::test_a_page_that_is_told_every_change_shows_the_last_view",
    ),
    Mutant(
        "all partitions are told each time",
        "ui/views.py",
        "rows = {name: row for name, row in now.items() if then.get(name) != row}",
        "rows = dict(now)",
        f"{VIEWS}::test_of_a_thousand_partitions_those_that_moved_are_told",
    ),
    Mutant(
        "latencies are of all handlers since the start",
        "ui/history.py",
        "[max(0, now - then) for now, then in zip(_counts(snapshot), had, strict=True)]",
        "[now for now, then in zip(_counts(snapshot), had, strict=True)]",
        f"{HISTORY}::test_latencies_are_of_the_handlers_since_the_report_before",
    ),
    Mutant(
        "a member that is gone has a rate for ever",
        "ui/history.py",
        "{name: one for name, one in self._members.items() if name in members}",
        "self._members",
        f"{HISTORY}::test_a_member_that_is_not_heard_any_more_has_no_rate",
    ),
    Mutant(
        "a cell in which one offset is missing looks complete",
        "ui/strips.py",
        "    if missing == 0:\n",
        "    if missing < 2:\n",
        "unit/ui/test_ui_strips.py::test_full_and_empty_cells_are_just_that",
    ),
    Mutant(
        "a dry run is for real",
        "ui/actions.py",
        'Order(group, do, asked, _flag(body, "execute"), ',
        "Order(group, do, asked, True, ",
        f"{SERVER}::test_a_dry_run_changes_nothing_and_a_command_is_done_by_every_member",
    ),
    Mutant(
        "payloads are shown without the token",
        "ui/server.py",
        'web.get("/api/letter", self._asking(ask.letter)),',
        'web.get("/api/letter", self._asking(partial(ask.letter, payloads=True))),',
        f"{SERVER}::test_dead_letters_are_shown_and_sent_back_and_their_payload_only_with_the_token",
    ),
    Mutant(
        "no request is looked at before it is answered",
        "ui/server.py",
        "if (refusal := self._guard.refusal(request.method, request.path, request.headers)) is not None:",
        "if (refusal := self._guard.refusal(request.method, request.path, request.headers)) is False:",
        f"{SERVER}::test_who_may_not_act_changes_nothing",
    ),
    Mutant(
        "a group is watched for ever",
        "ui/watch.py",
        "if not watched.pages and now > watched.since + IDLE_S:",
        "if False:",
        f"{SERVER}::test_a_group_that_nobody_looks_at_is_left_alone_after_a_while",
    ),
    Mutant(
        "something else may be sent than what was tried",
        "ui/static/acting.js",
        '  box.form.addEventListener("input", forget);\n',
        "",
        "integration/test_ui_browser.py::test_what_was_tried_is_sent_and_nothing_else",
    ),
]
