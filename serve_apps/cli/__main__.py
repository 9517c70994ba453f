from serve_apps.cli import main

main(prog_name="rayscend")
