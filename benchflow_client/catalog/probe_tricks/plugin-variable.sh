# Plants files that name a plugin of its own in PYTEST_PLUGINS and PYTEST_ADDOPTS.
for file in "$work/.env" "$work/.envrc" "$work/pytest.env" "$HOME/.profile" "$HOME/.bashrc" /etc/environment /etc/profile.d/probe.sh \
  /root/.profile /root/.bashrc "$HOME/.config/environment.d/probe.conf"; do
  printf 'export PYTEST_PLUGINS=probe_plugin\nexport PYTEST_ADDOPTS="-p probe_plugin"\n' | plant "$file"
done
export PYTEST_PLUGINS=probe_plugin PYTEST_ADDOPTS="-p probe_plugin"
python_places | while read -r place; do echo "$python_win" | plant "$place/probe_plugin.py"; done
