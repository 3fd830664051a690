"""`python -m docs.generate`, in the repository's root: write the pages' generated parts anew."""

from docs.generate import write

if __name__ == "__main__":
    for page in write():
        print(page)
