"""The file that `horarium init` writes: small, commented, and valid as it stands."""

from __future__ import annotations

STARTER = """\
# What runs when. Check it with `horarium validate triggers.yaml`, see what would change with
# `horarium apply triggers.yaml --dry-run`, and serve it with `horarium serve --apply triggers.yaml`.

# Who manages these triggers. It stays when the file moves; without it, the file's path is the name.
# source: git/my-team

# Every key begins with project/domain. Both are `default` unless you say.
# project: etl
# domain: production

# What deployments and triggers have unless they say otherwise.
defaults:
  timezone: UTC # a name such as Europe/Berlin; never the host's by accident
  # catch_up: latest     # after downtime: all (default), latest or none
  # owner: my-team       # whom to call
  # timeout: 1h          # of commands

# What runs things. `local`, this machine, is always there.
# targets:
#   crm:
#     http: {url: "https://crm.internal/hooks/sync", secret: "env:CRM_KEY"}
#     rate: {per_second: 50, burst: 100}
#     max_in_flight: 32

deployments:
  # The short form: what, and when. Quote cron expressions: * and @ mean something else to YAML.
  hello: {run: date, every: 1m}

  # nightly:
  #   run: ./backup.sh /srv
  #   cron: "30 2 * * *"
  #   late_after: 10m

  # The long form: several triggers of one deployment, each with its own parameters.
  # report:
  #   run: ./report.sh       # gets the parameters as JSON in HORARIUM_PARAMETERS
  #   kickoff_time_arg: as_of
  #   parameters: {depth: short}
  #   triggers:
  #     daily: {cron: "H 6 * * mon-fri"} # H: a minute of its own, so that not all start at :00
  #     month-end: {every: {months: 1, on_day: 31, at: "18:00"}, parameters: {depth: full}}
  #     once: {at: 2099-12-31T12:00:00+01:00}
"""
