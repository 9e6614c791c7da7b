# Field failure E06. Damaged checkpoints: an error or a right answer, never a crash, a hang or much memory.
"$DG_BUILD/tests/ckpt_damage"
