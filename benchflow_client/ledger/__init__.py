"""The one truth about which trial is where: contract, Redis implementation, in-memory twin."""
