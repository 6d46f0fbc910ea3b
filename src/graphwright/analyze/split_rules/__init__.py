"""How op types treat the dimensions of what they read, one rule per op type: which may be cut into parts; `analyze.splitting` asks them."""
