"""How people lay out their data: folders, tables, names of splits, and the one walk that recognises them.

        split_names   words for a split as people write them
        image_files   pictures in folders of classes
        text_folders  texts in folders of classes
        tar_shards    pictures in tar shards
        columns       tables by their files and columns; guessing: by their cells
        rows          the table of a split, and its rows, whatever the format
        recognition   what a path has, or its fault; own_data: the value that says it
        joining       labels that are in other files than their samples

`datasets` reads what it saved itself and the hub. Of the user's own files it reads some wrongly without a word (stray
quotes, labels such as NA and 007, alpha channels, 16 bits; ``recipes/results/reading.md``).
"""
