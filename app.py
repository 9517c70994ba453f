"""The application: `serve run app:deploy`, or `import_path: app:deploy` in a Serve config file."""

from serve_apps import serve_settings

serve_settings.apply()

from serve_apps.application import deploy  # noqa: E402  (Serve reads its settings on import)

__all__ = ["deploy"]
