"""Settings of Flower, a view of the fleet for people; the ledger is the truth.

The password comes from the environment (FLOWER_BASIC_AUTH=user:password). Only the health
check, which says OK, answers without it.
"""

from flower.views.monitor import Metrics
from tornado.web import authenticated

# Flower 2.2 shows its metrics, names of workers among them, to anybody, whatever the password.
# This line can go once /metrics answers 401 without it.
Metrics.get = authenticated(Metrics.get)

# Rows a person looks for: which trial, how far, with what result, where.
tasks_columns = "name,uuid,args,state,result,received,started,runtime,worker"

# Cancelling is `bench cancel`: buttons that revoke tasks or stop workers would go around
# the ledger, so they are off.
read_only = True

# A row takes about 7 kB: this bounds the memory to some 150 MB.
max_tasks = 20000

# The stored state would be a pickle, which runs code when it is read.
persistent = False

# Workers that are gone leave the list after five minutes.
purge_offline_workers = 300

# Names of months and hours as they are, not "two minutes ago".
natural_time = False
