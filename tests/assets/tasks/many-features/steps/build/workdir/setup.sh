echo given > given
