"""Max-discrepancy distributed ridge regression, linear or with kernels: shards learn in parallel rounds.

Source: *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*. Its algorithm 1 (MDD-LS) and its kernel
form (MDD-RKHS) are `fixed_point`, their rounds `exchange`; a shard's systems `least_squares`, from its `moments`; DRR
and KDRR, shards that are averaged, `recipe`.

Wrong in print: lemma 4, A⁻¹v = (vᵀA⁻¹b)./b, which fails for A = [[2, 1], [1, 2]], b = (1, 1), v = (1, 0), so that a
round costs O(d²) by a kept factor, not O(d); algorithm 1 has γ where its closed form has γ/2; rounds with kernels need
every pair of shards, O(N²) entries, not O(mn); a small step of the mean says nothing of the distance from the fixed
point, which is bounded here.
"""
