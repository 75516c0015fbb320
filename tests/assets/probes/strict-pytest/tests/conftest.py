pytest_plugins = ["house_checks"]
