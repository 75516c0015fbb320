"""Task folders: find them, read them, fetch them, bundle them, check them."""
