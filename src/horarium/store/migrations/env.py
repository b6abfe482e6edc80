"""What Alembic runs: every migration on the connection that `upgrade` was given, and the mark of the last.

The mark (`schema_compatibility`) says which programs may work on the schema: those that were built for
`readable_by` or later. Each migration since it exists has a line that says so.
"""

from alembic import context

from horarium.store.tables import metadata, schema_compatibility

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
context.run_migrations()

_connection = context.config.attributes["connection"]
for _revision in context.get_context().get_current_heads():
    _mark = getattr(context.script.get_revision(_revision).module, "readable_by", None)
    if _mark is not None:  # those before the mark have no table for it
        _connection.execute(schema_compatibility.delete())
        _connection.execute(schema_compatibility.insert().values(readable_by=_mark))
