"""Data sets, one file each, and their common parts (samples, sampling, tokenizers).

Tables, images and texts of the user's own are read here, and `datasets` reads what it saved itself and the hub. Tried
on 23 kinds of files, `datasets` reads 9 as they are meant and 8 wrongly without a word (stray quotes, labels such as
NA and 007, alpha channels, 16 bits), takes three times as long and copies what it reads into its cache
(``recipes/results/reading.md``). Its readers of JSON and of folders make no such mistake, but refuse a file where one
line is damaged, which is to be named or skipped here.
"""
