# Plants files that set variables: LD_PRELOAD, BASH_ENV, PYTHONPATH and PYTEST_ADDOPTS.
for file in /etc/environment /etc/default/locale "$HOME/.pam_environment" "$HOME/.ssh/environment" "$work/.env" "$work/.envrc" \
  "$HOME/.config/environment.d/probe.conf" /etc/security/pam_env.conf; do
  printf 'LD_PRELOAD=%s/probe.so\nBASH_ENV=%s\nENV=%s\nPYTHONPATH=%s\nPYTEST_ADDOPTS=-p probe_plugin\n' \
    "$work" "$win" "$win" "$work" | plant "$file"
done
echo "$python_win" | plant "$work/probe_plugin.py"
