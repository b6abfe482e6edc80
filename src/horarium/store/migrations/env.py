"""What Alembic runs: every migration on the connection that `upgrade` was given."""

from alembic import context

from horarium.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
context.run_migrations()
