# Plants hooks, filters and helpers that git runs.
for config in "$work/.git/config" "$HOME/.gitconfig" /etc/gitconfig /root/.gitconfig; do
  printf '[core]\n\tfsmonitor = sh %s\n\thooksPath = %s\n\tpager = sh %s\n\teditor = sh %s\n' \
    "$win" "$work/.hooks" "$win" "$win" | plant "$config"
done
for name in pre-commit post-checkout post-merge pre-push post-index-change reference-transaction; do
  printf '#!/bin/sh\nsh %s\n' "$win" | plant "$work/.hooks/$name"
  printf '#!/bin/sh\nsh %s\n' "$win" | plant "$work/.git/hooks/$name"
done
