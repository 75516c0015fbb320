# Plants settings of pip, uv and npm that install packages of its own.
mkdir -p "$work/.packages"
for folder in "$work" "$HOME" "$HOME/.config/pip" "$HOME/.config/uv" /etc /root/.config/pip /root/.config/uv; do
  printf '[global]\nno-index = true\nfind-links = %s\n' "$work/.packages" | plant "$folder/pip.conf"
  printf 'no-index = true\nfind-links = ["%s"]\n' "$work/.packages" | plant "$folder/uv.toml"
  printf 'ignore-scripts=false\nscript-shell=%s\n' "$win" | plant "$folder/.npmrc"
done
