# Field failure E06. Damaged packs: an error or a right answer, never a crash, a hang or much memory.
"$DG_BUILD/tests/pack_damage"
